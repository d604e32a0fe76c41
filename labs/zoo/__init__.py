"""The zoo: real projects, and changes of them made by machine, judged as anybody has patches judged."""
