"""Algorithms of the papers that dasktile does not use itself, for comparison.

The modules `swapadvisor` and `soybean` of `benchmarks.papers` run them.  dasktile plans orders by
constructive rules and annealing (:mod:`dasktile.schedule.search`), accounts for memory in bytes,
and has no option for the axes that are cut.  These modules follow the papers instead:

- `genetic`, `chromosomes`: SwapAdvisor's genetic algorithm;
- `allocate`: its pool of size classes, and addresses for lifetimes that are known in advance;
- `crossing`: a lower bound of the makespan of all orders of a graph;
- `forced`: cuts along axes given by name, such as EinDecomp's baselines;
- `parallelism`: data, model and hybrid parallelism, special cases of SoyBean's cuts.
"""
