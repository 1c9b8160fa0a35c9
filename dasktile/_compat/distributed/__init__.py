"""Everything undocumented of distributed that dasktile reads, calls, replaces or assigns.

`table` lists the names of distributed that each feature of dasktile needs.  When the plugins are
installed, `checks` looks each name up and compares signatures.  A feature for which a name is
missing, or takes other arguments, is switched off with one warning; all others, and distributed
itself, are unaffected.

The other modules are the only code that uses these names:

- on clients: `recording` (what they compute);
- on the scheduler: `scheduling` (its tasks and policies), `metadata` (values for clients) and
  `pages` (its dashboard);
- on workers: `execution` (their tasks) and `storage` (their results and memory);
- on both: `plugins`, `states` (of tasks) and `serialization`.

Their functions must not be called where the feature is unavailable, unless a docstring allows it.
What they replace is an `overrides.Override`, which can be restored.

Nothing of distributed is imported before it is used: clients may plan without it.
"""
