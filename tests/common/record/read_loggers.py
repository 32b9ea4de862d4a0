"""Reads the runs that a logging tool has stored, with the tool's own reader, and prints them as JSON.

The tests start it as a process of its own for each tool:

python read_loggers.py tensorboard FOLDER
"""

import json
import struct
import sys
import types
from pathlib import Path


def of_tensorboard(folder):
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # TensorBoard's switch to do without TensorFlow
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    events = EventAccumulator(folder, size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    given = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    hyperparameters = {name: getattr(value, value.WhichOneof("kind")) for name, value in given.items()}
    return {
        "numbers": {tag: {scalar.step: scalar.value for scalar in events.Scalars(tag)} for tag in tags["scalars"]},
        "hyperparameters": hyperparameters,
    }


def of_wandb(folder):
    """The file has LevelDB's log format: blocks of 32 KiB, records with a header of checksum, length and kind."""
    from wandb.proto import wandb_internal_pb2

    def records(path):
        data, place, whole = path.read_bytes(), 7, b""
        while place + 7 <= len(data):
            if (left := 32768 - place % 32768) < 7:
                place += left
                continue
            length, kind = struct.unpack_from("<HB", data, place + 4)
            part, place = data[place + 7 : place + 7 + length], place + 7 + length
            whole = part if kind in (1, 2) else whole + part  # 1: full record, 2: first part; 3: middle, 4: last part
            if kind in (1, 4):
                yield wandb_internal_pb2.Record.FromString(whole)

    (path,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
    found = {"numbers": {}, "summary": {}, "files": []}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found["hyperparameters"] = {one.key: json.loads(one.value_json) for one in record.run.config.update}
            found["name"] = record.run.display_name
        elif kind == "history":
            values = {"/".join(one.nested_key) or one.key: json.loads(one.value_json) for one in record.history.item}
            for name, value in values.items():
                if "/" in name:
                    found["numbers"].setdefault(name, {})[values["step"]] = value
        elif kind == "summary":
            found["summary"] |= {one.key: json.loads(one.value_json) for one in record.summary.update if one.key}
        elif kind == "files":
            found["files"] += [file.path for file in record.files.files]
    return found


if __name__ == "__main__":
    print(json.dumps({"tensorboard": of_tensorboard, "wandb": of_wandb}[sys.argv[1]](sys.argv[2])))
