"""Every report as a document, built from results: one module for each kind of report."""
