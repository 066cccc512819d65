"""`strata data`: the commands for datasets, in the order in which people need them."""

from strata.cli.lazy import Command, lazy_app

COMMANDS = {
    "register": Command("data_jobs:register", "Make a dataset known to a job"),
    "ls": Command("data_jobs:ls", "List the datasets of a job, and how far each is in its epoch"),
    "show": Command("data_show:show", "Show a dataset: the state of its epoch, and who owns which shards"),
    "verify": Command("data_verify:verify", "Prove from the coordinator's ledger that an epoch had every sample once"),
    "unregister": Command("data_jobs:unregister", "Take a dataset out of a job"),
    "index": Command(
        "data_index:index", "Index the files of a dataset, save that as one small file, and say what was found"
    ),
    "check": Command(
        "data_index:check", "Say which files of a dataset changed, are gone or were added since it was indexed"
    ),
    "bench": Command("data_bench:bench", "Measure how fast the loader gives out batches"),
}

app = lazy_app(
    COMMANDS,
    help="The datasets of a job: register them, see who owns what, and prove that an epoch had every sample once. And "
    "without a coordinator: index files, see what changed since, and measure how fast they are read. A PATH is a file, "
    "a folder, a pattern in quotes, or several of those: s3://bucket/prefix, gs://…, az://…, or a path of this"
    " machine.",
)
