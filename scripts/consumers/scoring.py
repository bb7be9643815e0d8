"""Scores of answers, as SQuAD defines them, and sums of them by skill."""
import collections
import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text):
    """Lower case, without punctuation, articles and extra space (SQuAD v1.1's evaluation)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer, references):
    return float(any(normalise(answer) == normalise(r) for r in references))


def f1(answer, references):
    """Best over the references of the harmonic mean of word precision and recall."""
    def one(reference):
        got, want = normalise(answer).split(), normalise(reference).split()
        if not got or not want:
            return float(got == want)
        same = sum((collections.Counter(got) & collections.Counter(want)).values())
        return 2 * same / (len(got) + len(want))
    return max(one(r) for r in references)


class Means:
    """Means of named quantities by group, and over all under "all"."""

    def __init__(self):
        self._sums = collections.defaultdict(lambda: collections.defaultdict(lambda: [0.0, 0.0]))

    def add(self, group, **values):
        """A value is a number, or (sum, weight) for a weighted mean."""
        for name, value in values.items():
            total, weight = value if isinstance(value, tuple) else (value, 1)
            for key in (group, "all"):
                entry = self._sums[key][name]
                entry[0] += total
                entry[1] += weight

    def table(self):
        return {group: {name: round(total / weight, 4) for name, (total, weight) in sorted(names.items()) if weight}
                for group, names in sorted(self._sums.items())}
