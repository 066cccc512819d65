"""A checkpoint that refers to tensors of others, as an incremental save leaves it: made by hand, from manifests."""

import msgspec

from strata import background
from strata.checkpoint import manifest
from strata.checkpoint.manifest import Chunk, File, Part, Tensor
from strata.checkpoint.store import Folder, Store
from strata.storage import StorageBackend


def refer(storage: StorageBackend, step: int, like: int, elsewhere: dict[str, int], job: str = "default") -> None:
    """Commit `step`: the state of `like`, but with the bytes of these tensors in the files of other steps.

    Everything else stays where `like` has it, in its files: so all of it is referred to.
    """
    background.run(_refer(Store(storage, job), step, like, elsewhere))


async def _refer(store: Store, step: int, like: int, elsewhere: dict[str, int]) -> None:
    base = await store.metadata(Folder(like))
    part = await store.part(base.parts[0])
    others = {n: await store.part((await store.metadata(Folder(n))).parts[0]) for n in set(elsewhere.values())}
    files: list[File] = []
    tensors = [
        _moved(tensor, others[elsewhere[tensor.name]] if tensor.name in elsewhere else part, files)
        for tensor in part.tensors
    ]
    made = msgspec.structs.replace(part, tensors=tensors, files=files, attempt="9-refers")
    data = manifest.encode_part(made)
    path = f"step_{step}/part-0-9-refers.json"
    await store.storage.put_if_absent(store.key(path), data)
    reference = msgspec.structs.replace(
        base.parts[0], path=path, size=len(data), digest=manifest.digest_of(data), written_bytes=0
    )
    told = msgspec.structs.replace(
        base, step=step, attempt="9-refers", parts=[reference], references=sorted(file.path for file in files)
    )
    await store.storage.put_if_absent(store.key(f"step_{step}", manifest.METADATA), manifest.encode_metadata(told))


def _moved(tensor: Tensor, origin: Part, files: list[File]) -> Tensor:
    there = next(each for each in origin.tensors if each.name == tensor.name)
    chunks = []
    for chunk in there.chunks:
        file = origin.files[chunk.file]
        if file not in files:
            files.append(file)
        chunks.append(Chunk(files.index(file), chunk.at, chunk.size, chunk.digest))
    return msgspec.structs.replace(tensor, chunks=chunks)
