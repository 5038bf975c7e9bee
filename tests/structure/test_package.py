"""What a user gets: the wheel holds everything that the installed program reads at run time."""

from __future__ import annotations

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
DATA = (".html", ".css", ".js", ".svg", ".md", "")


def test_the_wheel_has_the_dashboards_files_and_their_licences() -> None:
    packed = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    folder = ROOT / "node" / "dashboard" / "static"
    wanted = {str(path.relative_to(ROOT)) for path in folder.rglob("*") if path.is_file()}
    assert wanted <= packed
    assert {Path(path).suffix for path in wanted} == set(DATA)
    assert "node/dashboard/static/vendor/LICENSE-preact" in packed
