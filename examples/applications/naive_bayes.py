"""Multinomial naive Bayes: fitted to documents, then used to classify them.

    python examples/applications/naive_bayes.py [--workers 4] [--size 20000]

Counts of words come in square blocks.  They are summed over the documents of a class and
again over the words of a document.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np
from sklearn.naive_bayes import MultinomialNB

import dasktile

CLASSES = 8


def data(size: int = 20_000, seed: int = 0) -> tuple[da.Array, da.Array]:
    """How often each of 200 words occurs in every document, and the documents' classes."""
    rng = np.random.default_rng(seed)
    often = rng.gamma(0.5, size=(CLASSES, 200))
    classes = rng.integers(CLASSES, size=size)
    counts = rng.poisson(often[classes]).astype(float)
    return da.from_array(counts, chunks=(size // 4, 50)), da.from_array(classes, chunks=size // 4)


def build(counts: da.Array, classes: da.Array) -> tuple[da.Array, da.Array]:
    """The logarithm of how probable each word is in every class; the likeliest classes."""
    member = (classes[:, None] == da.arange(CLASSES)).astype(float)
    words = member.T @ counts + 1
    likely = da.log(words / words.sum(axis=1, keepdims=True))
    prior = da.log(member.mean(axis=0))
    return likely, (counts @ likely.T + prior).argmax(axis=1)


def check(found: tuple[np.ndarray, np.ndarray], counts: da.Array, classes: da.Array) -> bool:
    """Whether both are scikit-learn's."""
    likely, predicted = found
    model = MultinomialNB().fit(counts.compute(), classes.compute())
    same = np.allclose(likely, model.feature_log_prob_)
    return same and np.array_equal(predicted, model.predict(counts.compute()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--size", type=int, default=20_000)
    arguments = parser.parse_args()
    inputs = data(arguments.size)
    result = build(*inputs)
    explanation = dasktile.explain(result, workers=arguments.workers)
    print(str(explanation).partition("\n\n")[0])  # the rest is a table of all arrays
    (found,) = dask.compute(dasktile.optimize(result, workers=arguments.workers))
    print("as scikit-learn:", check(found, *inputs))


if __name__ == "__main__":
    main()
