"""Algorithms of the papers that the package itself has no use for, to compare with.

`swapadvisor` and `soybean`, beside this folder, run them.  The package plans orders by
constructive rules and annealing (:mod:`dasktile.schedule.search`), accounts for memory by bytes,
and lets no user name the axes that are cut; what is here does these things the papers' way:

- `genetic`, `chromosomes`: SwapAdvisor's genetic algorithm;
- `allocate`: its pool of size classes, and addresses for lifetimes that are known beforehand;
- `crossing`: seconds that no order of a graph can beat;
- `forced`: cuts along axes that are named, such as EinDecomp's baselines;
- `parallelism`: data, model and hybrid parallelism, special cases of SoyBean's cuts.
"""
