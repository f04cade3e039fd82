"""One line for trainers that run the loop themselves: each file is imported where its framework is used."""
