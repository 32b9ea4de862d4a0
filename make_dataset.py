"""Makes a data set of memory-mapped arrays from a folder of images; `--help` prints the options.

python make_dataset.py --images photos --output data/photos --image-shape 64 64 3
python compare.py --dataset arrays --data-dir data/photos
"""

import common.platform.quiet_start  # noqa: F401 - see there; isort: skip

import signal

from common.platform.ending import as_program, take_signals

if __name__ == "__main__":
    with as_program("make_dataset.py"):
        # Imported inside `as_program`: Ctrl-C during these imports prints one line, not a stack trace.
        from rich.console import Console

        from common.data.image_folder import ImageFolderConfig, convert
        from common.platform.cli import parse_options

        about = "Turns a folder of images, a sub-folder for each class, into arrays that training maps into memory."
        take_signals(signal.default_int_handler)
        convert(parse_options(ImageFolderConfig, "make_dataset.py", about), Console(highlight=False, markup=False))
