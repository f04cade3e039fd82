"""Result logs of MLPerf Training, made by hand: epochs of a known length."""

from __future__ import annotations

import json


def line(key, ms, value=None, event="POINT_IN_TIME", **metadata):
    document = {
        "namespace": "",
        "time_ms": ms,
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": metadata,
    }
    return f":::MLLOG {json.dumps(document)}"


def log(
    epochs_s=(100.0, 100.0, 100.0, 20.0),
    *,
    devices=8,
    batch=256,
    epoch=4572,
    stated="device",
    benchmark="retinanet",
    **header,
):
    """Lines of one run. `epoch`: its train_samples; `stated`: the unit of its throughput, or a number, or None."""
    told = {
        "submission_benchmark": benchmark,
        "submission_org": "Somebody",
        "submission_platform": "1xMachine",
        "global_batch_size": batch,
        "local_batch_size": batch // devices,
        "gradient_accumulation_steps": 1,
        "train_samples": epoch,
        **header,
    }
    now = 1_700_000_000_000
    lines = ["+ some noise", *(line(key, now, value) for key, value in told.items() if value is not None)]
    for k, seconds in enumerate(epochs_s):
        lines.append(f"0: {line('epoch_start', now, k, 'INTERVAL_START', epoch_num=k)}")
        now += round(seconds * 1e3)
        lines.append(f"0: {line('epoch_stop', now, k, 'INTERVAL_END', epoch_num=k)}")
        rate = epoch * batch / seconds
        if stated is not None:
            value = {"device": rate / devices, "job": rate}.get(stated, stated)
            lines.append(line("tracked_stats", now, {"throughput": value}, step=k + 1))
    lines.append(line("run_stop", now, None, "INTERVAL_END", status="success"))
    return "\n".join(lines) + "\n"


def write(folder, text, number=0, **system):
    """result_N.txt, and system.json where something is said of it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"result_{number}.txt").write_text(text)
    if system:
        known = {
            "submitter": "Somebody",
            "system_name": "Machine",
            "accelerator_model_name": "H200",
            **system,
        }
        (folder / "system.json").write_text(json.dumps(known))
    return folder / f"result_{number}.txt"
