"""`strata ckpt`: the commands for checkpoints, in the order in which people need them."""

from strata.cli.lazy import Command, lazy_app

COMMANDS = {
    "ls": Command("ckpt_look:ls", "List the checkpoints of a job"),
    "show": Command("ckpt_show:show", "Show what a checkpoint holds: tensors, plain values, files"),
    "verify": Command("ckpt_look:verify", "Read every byte of checkpoints and compare it with its digest"),
    "diff": Command(
        "ckpt_diff:diff", "Compare two steps, or the checkpoints at two URLs, by the digests in their manifests"
    ),
    "cp": Command("ckpt_copy:cp", "Copy a checkpoint, with the files it refers to, between any two storages"),
    "export": Command("ckpt_convert:export", "Write a checkpoint's tensors in another format"),
    "import": Command("ckpt_convert:import_command", "Make a checkpoint from files in another format"),
    "rm": Command("ckpt_keep:rm", "Remove checkpoints. Files that other checkpoints refer to stay"),
    "pin": Command("ckpt_keep:pin", "Keep checkpoints whatever retention says"),
    "unpin": Command("ckpt_keep:unpin", "Let retention decide on checkpoints again"),
    "rollback": Command("ckpt_rollback:rollback", "Go back to an older checkpoint"),
}

app = lazy_app(
    COMMANDS,
    help="Look at checkpoints, verify and compare them, copy them, and take them to other formats and back. A URL is "
    "the root that CheckpointManager was given, or the folder of a job or of a checkpoint in it: s3://bucket/prefix, "
    "gs://…, az://…, file:///… or a path. A checkpoint is named by its step; `latest` is the one to go on from.",
)
