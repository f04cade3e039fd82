"""Arms, blocks and stamps: how a step is measured."""
