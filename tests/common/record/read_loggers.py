"""Reads the run that a logging tool has stored, with the tool's own reader, and prints it as JSON.

The tests start it as a process of its own: python read_loggers.py tensorboard FOLDER
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

    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    given = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    numbers = {tag: {one.step: one.value for one in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    last = {tag: values[max(values)] for tag, values in numbers.items()}
    options = {name: getattr(value, value.WhichOneof("kind")) for name, value in given.items()}
    return {"numbers": numbers, "summary": last, "options": options}


def of_wandb(folder):
    """The file has LevelDB's log format: blocks of 32 KiB, records with a header of checksum, length and kind."""
    from wandb.proto import wandb_internal_pb2

    (path,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
    data, place, whole = path.read_bytes(), 7, b""
    found = {"numbers": {}, "summary": {}, "options": {}, "files": []}
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind not in (1, 4):  # the whole record, or its last part
            continue
        record, whole = wandb_internal_pb2.Record.FromString(whole), b""
        found["options"] |= {one.key: json.loads(one.value_json) for one in record.run.config.update}
        found["summary"] |= {one.key: json.loads(one.value_json) for one in record.summary.update if one.key}
        found["files"] += [file.path for file in record.files.files]
        values = {"/".join(one.nested_key) or one.key: json.loads(one.value_json) for one in record.history.item}
        for name, value in values.items():
            if "/" in name:
                found["numbers"].setdefault(name, {})[values["step"]] = value
    return found


if __name__ == "__main__":
    print(json.dumps({"tensorboard": of_tensorboard, "wandb": of_wandb}[sys.argv[1]](sys.argv[2])))
