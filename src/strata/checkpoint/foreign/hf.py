"""A folder as transformers has it: weights, and the files that say what they are the weights of."""

import os
from pathlib import Path
from typing import Any

import msgspec

from strata.checkpoint.dtypes import KNOWN
from strata.checkpoint.exporting import Exported, Meter, choose, export_safetensors
from strata.checkpoint.loading import names_of
from strata.checkpoint.manifest import UNREADABLE
from strata.checkpoint.matching import Keys
from strata.checkpoint.skeleton import kind_of, shown
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.tree import ARRAYS, Node
from strata.checkpoint.whole import Whole
from strata.errors import InvalidInput
from strata.storage import StorageBackend

CONFIG = "config.json"
KEYS = ("config", "model_config", "hf_config")
"""Where in a state a configuration may stand."""
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".index.json")
SHARD_BYTES = 5 << 30
_TELLING = ("model_type", "architectures")


def files_beside(folder: Path) -> dict[str, Path]:
    """What is in such a folder beside weights: configurations and what belongs to a tokenizer."""
    if not (folder / CONFIG).is_file():
        raise InvalidInput(f"there is no {CONFIG} in {folder}")
    return {
        entry.name: Path(entry.path)
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)
        if entry.is_file() and not entry.name.startswith(".") and not entry.name.endswith(WEIGHTS)
    }


def read_config(folder: Path) -> dict[str, Any]:
    try:
        data = (folder / CONFIG).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{folder / CONFIG} cannot be read: {error.strerror}") from error
    return decode_config(data, str(folder / CONFIG))


def decode_config(data: bytes, where: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except UNREADABLE as error:
        raise InvalidInput(f"{where} is no configuration: {error}") from error


def config_in(part: Whole) -> dict[str, Any] | None:
    """The one that stands in the state, if there is one."""
    if kind_of(part.skeleton) != "dict":
        return None
    for key in KEYS:
        node = part.skeleton["dict"].get(key)
        if kind_of(node) == "dict" and any(each in node["dict"] for each in _TELLING):
            found: dict[str, Any] = _plain(node)
            return found
    return None


def ties(config: dict[str, Any]) -> bool:
    """Whether transformers ties what is tied here: only then one of the names is enough."""
    return config.get("tie_word_embeddings") is True


def default_keys(names: list[str]) -> tuple[str, str]:
    """Which tensors are the model's, and what their names begin with that transformers does not know."""
    return ("model/*", "model/") if any(name.startswith("model/") for name in names) else ("*", "")


async def export_hf(
    store: Store,
    folder: Folder,
    part: Whole,
    target: StorageBackend,
    *,
    config_folder: Path | None = None,
    keys: Keys | None = None,
    strip: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    meter: Meter = Meter(),  # noqa: B008  it holds nothing
) -> Exported:
    """A folder that `from_pretrained` opens. Its configuration comes last: without one it is none yet."""
    config = read_config(config_folder) if config_folder is not None else config_in(part)
    if config is None:
        raise InvalidInput(
            f"transformers needs a {CONFIG}, and the state holds none under {', '.join(KEYS)}: name a folder with one"
        )
    usual_keys, usual_strip = default_keys(names_of(part))
    choice = choose(
        part,
        usual_keys if keys is None else keys,
        usual_strip if strip is None and keys is None else strip or "",
        rename=called_there,
        tied_once=ties(config),
    )
    made = await export_safetensors(store, folder, part, choice, target, shard_bytes=shard_bytes, meter=meter)
    beside = {CONFIG: msgspec.json.format(msgspec.json.encode(config)) + b"\n"}
    if config_folder is not None:
        beside = {name: path.read_bytes() for name, path in files_beside(config_folder).items()}
    ordered = sorted(beside, key=lambda name: name == CONFIG)
    for name in ordered:
        await target.write(name, beside[name])
    return made._replace(files=[*made.files, *ordered])


def called_there(name: str) -> str:
    """A parameter's name as transformers has it: with dots, and without what DDP and torch.compile put before it."""
    return name.replace("/", ".").replace("_orig_mod.", "").removeprefix("module.")


def _plain(node: Node) -> Any:
    """As JSON has it. A type of torch's is written by its name."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    kind = kind_of(node)
    if kind in (*ARRAYS, "arrays"):
        raise InvalidInput("the configuration in the state holds an array: give a folder with one")
    if kind == "dict":
        return {key: _plain(each) for key, each in node["dict"].items()}
    if kind == "items":
        return {str(shown(key)): _plain(each) for key, each in node["items"]}
    if kind in ("tuple", "set", "frozenset"):
        return [_plain(each) for each in node[kind]]
    if kind == "torch.dtype" and node[kind] in KNOWN:
        return node[kind]
    return shown(node)
