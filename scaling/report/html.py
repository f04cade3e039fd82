"""The report of one run as one HTML file."""

from __future__ import annotations

from scaling.analysis.machines import Machine
from scaling.analysis.results import Analysis, StepHistory, Timeline
from scaling.plan import Plan
from scaling.report import cases, findings, sections, text
from scaling.report import traced as shown
from scaling.report.conditions import conditions
from scaling.report.document import Figures, anchor, contents, document, esc, items, lead, pairs, section
from scaling.report.plots.base import Plot

HOW_SURE = "How sure"
STEPS = "Steps as they ran"


def page(
    analysis: Analysis,
    plan: Plan,
    timelines: tuple[Timeline, ...],
    histories: tuple[StepHistory, ...] = (),
    machines: tuple[Machine, ...] = (),
) -> str:
    """The report of one run, as the text of an HTML file."""
    figures = Figures()
    found = _sections(analysis, plan, timelines, histories, machines, figures)
    run = analysis.run
    body = (
        _title(analysis),
        lead(findings.answer(analysis), _sureness(analysis)),
        contents(found),
        *found,
    )
    return document(f"{run.model} on {run.topology}", "".join(body), figures)


def figures_of(
    analysis: Analysis, plan: Plan, timelines: tuple[Timeline, ...], histories: tuple[StepHistory, ...]
) -> tuple[Plot, ...]:
    """What the page of a run draws."""
    figures = Figures()
    _sections(analysis, plan, timelines, histories, (), figures)
    return tuple(figures.drawn)


def _sections(
    analysis: Analysis,
    plan: Plan,
    timelines: tuple[Timeline, ...],
    histories: tuple[StepHistory, ...],
    machines: tuple[Machine, ...],
    figures: Figures,
) -> list[str]:
    found = (
        section("Trials that did not finish", sections.unfinished(analysis.trials)),
        section("Key figures", sections.key_figures(analysis.points)),
        section("Inference", sections.inference(analysis, figures)),
        section("Training settings", sections.training(analysis, figures)),
        section("Largest batch", items(map(cases.largest_line, analysis.largest_batch))),
        section("Cases that were not measured", items(cases.failures(analysis))),
        section("Scaling", sections.efficiency(analysis, figures)),
        section("Where the efficiency goes", sections.waterfalls(analysis.points, figures)),
        section("What limits it, and what to try", sections.verdicts(analysis.verdicts)),
        section("One typical step", sections.typical_steps(timelines, figures)),
        section(
            "Parts of a step", sections.mean_parts(analysis.points, figures, traced=bool(analysis.trace))
        ),
        section("Communication", sections.communication(analysis, plan, figures)),
        section("Hosts", sections.hosts(analysis.hosts)),
        *(section(text.sentence(shown.title(t))[:-1], sections.from_traces(t)) for t in analysis.trace or ()),
        section("Roofline", sections.ceilings(analysis.roofline, figures)),
        section(STEPS, ran := sections.as_they_ran(analysis, histories, figures)),
        section("Conditions", pairs(conditions(analysis.run, plan))),
        section("Machine and environment", sections.environment(machines, plan)),
        section(HOW_SURE, sections.how_sure(analysis, STEPS if ran else "")),
    )
    return [one for one in found if one]


def _title(analysis: Analysis) -> str:
    run = analysis.run
    badge = '<strong class="badge">SYNTHETIC compute</strong> ' if run.synthetic else ""
    how = "inference" if analysis.inference else f"{run.mode} scaling"
    about = f"{run.precision}, {how}, {run.backend} on {run.device}"
    when = f"<time>{esc(text.moment(run.started))}</time>"
    title = esc(f"{run.model} on {run.topology}")
    return f'<header><h1>{title}</h1><p class="about">{badge}{esc(about)}, {when}</p></header>'


def _sureness(analysis: Analysis) -> str:
    """How well the answer is known, and how many things stand against it."""
    quality = analysis.quality
    said = [esc(text.sentence(line)) for line in quality.reached]
    if quality.warnings:
        many = text.count(len(quality.warnings), "warning")
        said.append(f'<a href="#{anchor(HOW_SURE)}">{many}</a>')
    return f'<p class="note reached">{" ".join(said)}</p>' if said else ""
