"""`scaling trace`: the decomposition of a training from profiler traces that are there already."""

from __future__ import annotations

import json
import sys

from scaling import codec
from scaling.errors import InputError, ScalingError
from scaling.trace.files import find, read_all
from scaling.verbs.arguments import parse


def main(arguments: list[str]) -> int:
    """0; 3 when ranks are missing; 1 when no file could be read. `--json` alone writes no folder."""
    paths, options = parse("trace", arguments, least=1, most=100_000, of="profiler traces or folders")
    batch = _batch(options.get("--batch"))
    files = find(paths)
    pages = "--json" not in options or "--out" in options
    found, problems = read_all(files, with_hta="--hta" in options, meanwhile=lambda: _load(pages=pages))
    if not found:
        raise ScalingError(
            f"none of {len(files)} files can be used: "
            + "; ".join(f"{p.path}: {p.why}" for p in problems[:3])
            + ("" if len(problems) <= 3 else f"; and {len(problems) - 3} more")
        )
    from scaling.trace.summary import analyse  # noqa: PLC0415  after the processes that read: scipy has threads

    name = options.get("--name") or "trace"
    analysis, plan, drawn = analyse(found, problems, batch=batch, name=name, with_hta="--hta" in options)
    code = 0 if not problems and all(t.status == "done" for t in analysis.trials) else 3
    if "--json" in options:
        print(json.dumps(codec.encode(analysis), indent=1))
    if not pages:
        return code
    from scaling.trace.folder import write_folder  # noqa: PLC0415  plotly is slow to import

    folder = write_folder(analysis, plan, drawn, options.get("--out"))
    if "--json" not in options:
        from rich.console import Console  # noqa: PLC0415

        from scaling.report.terminal import print_analysis  # noqa: PLC0415

        print_analysis(Console(), analysis, plan, report_path=folder.report_html)
    if "--wandb" in options:
        from scaling.report.wandb import log_run  # noqa: PLC0415

        warning = log_run(folder, plan, analysis, ())
        if warning:
            print(f"scaling: W&B: {warning}", file=sys.stderr)
    return code


def _load(*, pages: bool) -> None:
    """Import what comes after reading: it takes as long as a file of many events."""
    import scaling.trace.summary  # noqa: PLC0415

    if pages:
        import scaling.report.terminal  # noqa: PLC0415
        import scaling.trace.folder  # noqa: F401, PLC0415


def _batch(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or not int(text):
        raise InputError(f"--batch {text}: the samples of a rank and step are expected, such as --batch 32")
    return int(text)
