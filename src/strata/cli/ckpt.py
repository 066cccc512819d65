"""`strata ckpt`: the commands for checkpoints, in the order in which people need them."""

import typer

from strata.cli import ckpt_convert, ckpt_copy, ckpt_diff, ckpt_keep, ckpt_look, ckpt_rollback, ckpt_show

app = typer.Typer(
    help="Look at checkpoints, verify and compare them, copy them, and take them to other formats and back. A URL is "
    "the root that CheckpointManager was given, or the folder of a job or of a checkpoint in it: s3://bucket/prefix, "
    "gs://…, az://…, file:///… or a path. A checkpoint is named by its step; `latest` is the one to go on from.",
    no_args_is_help=True,
)
app.command()(ckpt_look.ls)
app.command()(ckpt_show.show)
app.command()(ckpt_look.verify)
app.command()(ckpt_diff.diff)
app.command()(ckpt_copy.cp)
app.add_typer(ckpt_convert.export, name="export")
app.command("import")(ckpt_convert.import_command)
app.command()(ckpt_keep.rm)
app.command()(ckpt_keep.pin)
app.command()(ckpt_keep.unpin)
app.command()(ckpt_rollback.rollback)
