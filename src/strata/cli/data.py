"""`strata data`: the commands for datasets, in the order in which people need them."""

import typer

from strata.cli import data_bench, data_index, data_jobs, data_show, data_verify

app = typer.Typer(
    help="The datasets of a job: register them, see who owns what, and prove that an epoch had every sample once. And "
    "without a coordinator: index files, see what changed since, and measure how fast they are read. A PATH is a file, "
    "a folder, a pattern in quotes, or several of those: s3://bucket/prefix, gs://…, az://…, or a path of this"
    " machine.",
    no_args_is_help=True,
)
app.command()(data_jobs.register)
app.command()(data_jobs.ls)
app.command()(data_show.show)
app.command()(data_verify.verify)
app.command()(data_jobs.unregister)
app.command()(data_index.index)
app.command()(data_index.check)
app.command()(data_bench.bench)
