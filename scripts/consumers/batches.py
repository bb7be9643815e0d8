"""Endless, seeded streams of documents and their packing into steps.

A stream gives document i for every i >= 0 and depends on nothing else, so that the index of the
next document is all a resumed run needs to know.
"""
import random


class Shuffled:
    """A list of documents in a new order every epoch."""

    def __init__(self, documents, seed):
        if not documents:
            raise ValueError("no documents to train on")
        self._documents = documents
        self._seed = seed
        self._epoch = None
        self._order = []

    def document(self, i):
        epoch, k = divmod(i, len(self._documents))
        if epoch != self._epoch:
            self._order = list(range(len(self._documents)))
            random.Random(f"{self._seed}:epoch {epoch}").shuffle(self._order)
            self._epoch = epoch
        return self._documents[self._order[k]]


class Generated:
    """Documents made from their index by `make(i)`."""

    def __init__(self, make):
        self.document = make


def next_step(stream, cursor, step_tokens, micro_tokens):
    """The micro-batches (lists of documents) of one step and the cursor after it.

    A micro-batch holds at most `micro_tokens` and the step at most `step_tokens`, but never less
    than one document.
    """
    micro_batches, total = [], 0
    while True:
        document = stream.document(cursor)
        if micro_batches and total + len(document) > step_tokens:
            return micro_batches, cursor
        last = sum(map(len, micro_batches[-1])) if micro_batches else micro_tokens
        if last + len(document) > micro_tokens:
            micro_batches.append([])
        micro_batches[-1].append(document)
        total += len(document)
        cursor += 1
