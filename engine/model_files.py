"""A checkpoint's config, tokenizer and chat template, converted by transformers once and kept.

Converting a GGUF vocabulary takes seconds and importing transformers two more, so the result is cached under
the fingerprint of the files it came from; later starts read plain JSON.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from engine.block_hash import Namespace, model_digest
from engine.cache_folder import cache_folder, locked
from engine.errors import ModelDamagedError
from engine.fingerprint import fingerprint
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig, check_supported
from engine.model_source import ModelSource, SourceKind, resolve_model
from engine.progress import begin
from engine.rope import gguf_rope_scaling

_CONVERSION: Final = 2
"""Raise when the converted form changes, so that older caches are passed over."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A resolved model: where its tensors are, what it is, and its converted tokenizer folder.

    `folder` holds config.json, tokenizer.json, tokenizer_config.json and perhaps chat_template.jinja.
    """

    source: ModelSource
    config: ModelConfig
    folder: Path
    weights_fingerprint: bytes
    tokenizer_fingerprint: bytes

    def namespace(self, block_size: int, salt: bytes = b"") -> Namespace:
        """The root of this model's block hashes; equal on every machine with the same files."""
        return Namespace(model_digest(self.weights_fingerprint, self.tokenizer_fingerprint, block_size), salt)


def open_model(reference: str) -> ModelFiles:
    """Resolves, checks and converts a model, tensors unread. Raises a ModelError or EngineConfigError."""
    source = resolve_model(reference)
    _check_supported(source)
    weights_files = source.weight_files()
    if source.kind is SourceKind.FOLDER:
        weights_files = [*weights_files, source.path / "config.json"]
    weights = fingerprint(weights_files)
    tokenizer = fingerprint(source.tokenizer_files())
    folder = _converted(source, weights, tokenizer)
    config = ModelConfig.from_transformers(_read_json(folder / "config.json"))
    return ModelFiles(source, config, folder, weights, tokenizer)


def _check_supported(source: ModelSource) -> None:
    """Refuses by name what can't be run, before anything large is read."""
    if source.kind is SourceKind.FOLDER:
        check_supported(_read_json(source.path / "config.json"))
        return
    with GGUFFile(source.path) as file:
        architecture = str(file.metadata.get("general.architecture"))
        check_supported(
            {
                "model_type": architecture,
                "num_local_experts": file.metadata.get(f"{architecture}.expert_count"),
                "rope_scaling": gguf_rope_scaling(architecture, file.metadata),
            }
        )
        file.check_types()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelDamagedError(f"{path} can't be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelDamagedError(f"{path} holds no JSON object")
    return content


def _converted(source: ModelSource, weights: bytes, tokenizer: bytes) -> Path:
    parent = cache_folder("models")
    name = f"{weights.hex()[:24]}-{tokenizer.hex()[:8]}-{version('transformers')}-{_CONVERSION}"
    folder = parent / name
    if folder.is_dir():
        return folder
    begin("converting the model's tokenizer: about 15 s, once")
    with locked(parent / f"{name}.lock"):
        if not folder.is_dir():
            temporary = Path(tempfile.mkdtemp(dir=parent))
            try:
                _convert(source, temporary)
                temporary.replace(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _convert(source: ModelSource, folder: Path) -> None:
    """Lets transformers read config and tokenizer, and writes them to `folder`."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    is_file = source.kind is SourceKind.GGUF
    place = source.path.parent if is_file else source.path
    options = {"gguf_file": source.path.name} if is_file else {}
    try:
        config = AutoConfig.from_pretrained(place, **options).to_dict()
        tokenizer = AutoTokenizer.from_pretrained(place, use_fast=True, **options)
        tokenizer.save_pretrained(folder)
        ends = [config.get("eos_token_id"), tokenizer.eos_token_id]
        if not is_file and (place / "generation_config.json").is_file():
            ends.append(GenerationConfig.from_pretrained(place).eos_token_id)
    except Exception as error:  # transformers raises anything at all on damaged files
        raise ModelDamagedError(
            f"transformers can't read config or tokenizer of {source.path}: {_first_line(error)}"
        ) from error
    if not (folder / "tokenizer.json").is_file():
        raise ModelDamagedError(f"{source.path} has no tokenizer that converts to tokenizer.json")
    config["eos_token_id"] = _merge(ends)
    if is_file:
        with GGUFFile(source.path) as file:
            _add_what_transformers_overlooks(config, file)
    (folder / "config.json").write_text(json.dumps(config, default=str, indent=1))


def _add_what_transformers_overlooks(config: dict[str, Any], file: GGUFFile) -> None:
    """Rope scaling, and heads of another size than the family's usual one."""
    architecture = str(file.metadata.get("general.architecture"))
    scaling = gguf_rope_scaling(architecture, file.metadata)
    config["rope_parameters"] = {**(config.get("rope_parameters") or {}), **scaling}
    if (head_dim := file.metadata.get(f"{architecture}.attention.key_length")) is not None:
        config["head_dim"] = head_dim


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _merge(ends: list[int | list[int] | None]) -> list[int]:
    merged: set[int] = set()
    for end in ends:
        if end is not None:
            merged.update(end if isinstance(end, list) else [end])
    return sorted(merged)
