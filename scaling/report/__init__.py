"""Results drawn: terminal, HTML, Markdown, figures, W&B. Nothing is computed here.

In: `analysis.results`, the plan, and where files go.
Out: text and files.
"""
