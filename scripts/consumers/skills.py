"""Skills the base model lacks, generated: exact key-value binding, state tracking, fields to JSON.

An example is a few hundred tokens of real text with facts woven between its sentences, and one
question for each. Document i of a seed is always the same. Training and evaluation differ in the
seed, in the source texts and in the words that facts are made of.
"""
import hashlib
import json
import pathlib
import random
import re

from . import data_qa
from .text import Example, Question

SKILLS = ("key_value", "state", "json")
TRAIN_SEED, EVALUATION_SEED = 1, 1_000_003
SOURCES = """\
Training text: generated from a seed (`scripts/consumers/skills.py`): facts of nouns and adjectives (wonderwords'
lists, MIT) woven into contexts of the `qa_train` training files (TyDi QA, Natural Questions, FairytaleQA, COVID-QA;
licences as in that folder's README). Evaluation uses other contexts, other words and another seed."""

_NAMES = ("Ada Adil Aiko Alma Amara Anton Arlo Asta Basil Bea Bruno Carmen Cora Dalia Dario Demir Edda Elio "
          "Emre Enzo Esme Farah Felix Freya Gita Greta Hanna Hugo Ida Ilse Imani Ines Ivo Jana Jonas Juno Kai "
          "Kira Lars Leila Lena Luca Mara Mateo Mila Mira Nadia Nico Nils Nora Odin Olga Omar Orla Otto Pia "
          "Priya Rafa Rhea Rosa Runa Samir Sana Selma Soren Tara Theo Tilda Uma Vera Viggo Wanda Yara Yusuf "
          "Zara Zeno").split()
_FAMILIES = ("Abel Ashby Baines Berg Brandt Calder Castell Dahl Dorn Eklund Fenn Fiske Garr Hale Holm Ibsen "
             "Jarvis Keller Kovar Lind Lowe Maddox Moen Nash Novak Orlov Penn Quist Rask Ruiz Sato Stark Thorn "
             "Udall Vance Voss Weld Wynn Yates Zeller").split()
_CITIES = ("Oslo Turin Leeds Porto Ghent Basel Lyon Riga Malmo Graz Cork Split Bergen Parma Delft Nantes Kobe "
           "Quito Lima Accra Hanoi Perth Boise Tampa Fargo Izmir Varna Tartu Bruges Siena").split()
_PLACES = ("cellar attic garage kitchen library workshop garden stable pantry office hallway tower greenhouse "
           "chapel bakery harbour courtyard laundry museum barn").split()
_COLOURS = "red blue green black white amber silver violet orange grey".split()


def _in_evaluation(word):
    """One word in eight is kept for evaluation."""
    return int(hashlib.sha256(word.encode()).hexdigest(), 16) % 8 == 0


class Words:
    """The word lists of one side."""

    def __init__(self, data, evaluation):
        def side(words):
            return [w for w in words if _in_evaluation(w) == evaluation]
        lists = pathlib.Path(data) / "wordlists"

        def read(name):
            words = (lists / name).read_text(encoding="utf-8").split("\n")
            return side(sorted({w for w in words if re.fullmatch(r"[a-z]{3,9}", w)}))
        self.nouns = read("nouns.txt")
        self.adjectives = read("adjectives.txt")
        self.people = side(f"{n} {f}" for n in _NAMES for f in _FAMILIES)


def sentences(text):
    """Sentences of a context, roughly."""
    parts = re.split(r"(?<=[.!?])\s+", text.strip())
    return [p for p in parts if p]


def texts(data, evaluation):
    names = data_qa.HELD_OUT if evaluation else data_qa.TRAIN
    found = dict.fromkeys(row["context"] for name in names for row in data_qa.rows(data, name))
    return [t for t in found if len(t) >= 300]


def _capital(text):
    return text[0].upper() + text[1:]


def _number(rng, digits):
    return str(rng.randrange(10 ** (digits - 1), 10 ** digits))


def _value(rng, words):
    kind = rng.randrange(4)
    if kind == 0:
        return _number(rng, rng.randint(3, 6))
    if kind == 1:
        letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(2))
        return f"{letters}-{_number(rng, 3)}"
    if kind == 2:
        return rng.choice(words.nouns)
    return f"{rng.choice(words.adjectives)} {rng.choice(words.nouns)}"


def _key_values(rng, words):
    """Bindings of one kind whose keys look alike; two of them are asked for."""
    kind = rng.choice(("pass key", "access code", "label", "password", "call sign", "locker tag"))
    fact = rng.choice(("The {kind} for {key} is {value}.", "Note that the {kind} of {key} is {value}.",
                       "{key} has the {kind} {value}.", "Remember: {key} uses the {kind} {value}."))
    ask = rng.choice(("What is the {kind} for {key}?", "Which {kind} belongs to {key}?",
                      "Tell me the {kind} of {key}."))
    keys, wanted = set(), rng.randint(4, 7)
    while len(keys) < wanted:
        shape = rng.randrange(3)
        keys.add(rng.choice(words.nouns) if shape == 0 else
                 f"{rng.choice(words.adjectives)} {rng.choice(words.nouns)}" if shape == 1 else
                 rng.choice(words.people))
    bindings = {key: _value(rng, words) for key in sorted(keys)}
    facts = [[_capital(fact.format(kind=kind, key=f"the {k}" if k.islower() else k, value=v))]
             for k, v in bindings.items()]
    questions = []
    for key in rng.sample(sorted(bindings), 3):
        asked = ask.format(kind=kind, key=f"the {key}" if key.islower() else key)
        questions.append(("key_value", f"{asked} Reply with the {kind} only.", bindings[key]))
    return facts, questions


def _moves(rng, words):
    """Objects that are put somewhere and moved; the last place counts."""
    facts, questions = [], []
    for thing in rng.sample(words.nouns, 2):
        route = rng.sample(_PLACES, rng.randint(2, 4))
        steps = [f"The {thing} is in the {route[0]}."]
        for place in route[1:]:
            steps.append(rng.choice((
                "{who} moved the {thing} to the {place}.", "{who} carried the {thing} to the {place}.",
                "Later, the {thing} was taken to the {place} by {who}.",
            )).format(who=rng.choice(words.people), thing=thing, place=place))
        facts.append(steps)
        if rng.random() < 0.7:
            questions.append(("state", f"Where is the {thing} at the end? Reply with the place only.", route[-1]))
        else:
            questions.append(("state", f"Where was the {thing} just before it was moved for the last time? "
                              "Reply with the place only.", route[-2]))
    return facts, questions


def _counter(rng, words):
    """A stock that goes up and down."""
    thing = rng.choice(words.nouns)
    count = rng.randint(3, 9)
    steps = [f"At first the box marked {thing} held {count} coins."]
    for _ in range(rng.randint(1, 3)):
        change = rng.randint(2, 5)
        if count - change >= 1 and rng.random() < 0.5:
            count -= change
            steps.append(f"{rng.choice(words.people)} took {change} coins out of the box marked {thing}.")
        else:
            count += change
            steps.append(f"{rng.choice(words.people)} put {change} coins into the box marked {thing}.")
    ask = f"How many coins are in the box marked {thing} at the end? Reply with the number only."
    return [steps], [("state", ask, str(count))]


def _record(rng, words):
    """An order told over several sentences, asked for as JSON with the fields named."""
    number = _number(rng, 5)
    fields = {
        "order": number,
        "customer": rng.choice(words.people),
        "item": f"{rng.choice(words.adjectives)} {rng.choice(words.nouns)}",
        "quantity": rng.randint(2, 60),
        "city": rng.choice(_CITIES),
        "colour": rng.choice(_COLOURS),
    }
    told = [rng.choice((f"Order {number} was placed by {fields['customer']}.",
                        f"{fields['customer']} placed order {number}."))]
    rest = [
        rng.choice((f"Order {number} asks for {fields['quantity']} pieces of the {fields['item']}.",
                    f"It is for the {fields['item']}, {fields['quantity']} pieces, under order {number}.")),
        rng.choice((f"Order {number} goes to {fields['city']}.",
                    f"The parcel of order {number} must be sent to {fields['city']}.")),
        rng.choice((f"The colour chosen for order {number} is {fields['colour']}.",
                    f"In order {number} everything is {fields['colour']}.")),
    ]
    rng.shuffle(rest)
    questions = []
    for size in (3, rng.randint(3, 5)):
        chosen = rng.sample(sorted(fields), size)
        ask = f"Give order {number} as JSON on one line with the fields {', '.join(chosen)}."
        questions.append(("json", ask, json.dumps({k: fields[k] for k in chosen})))
    return [told + rest], questions


def _weave(rng, background, threads):
    """Puts the facts between sentences; facts of one thread keep their order."""
    order = [i for i, thread in enumerate(threads) for _ in thread]
    rng.shuffle(order)
    heads = [iter(thread) for thread in threads]
    facts = [next(heads[i]) for i in order]
    places = sorted(rng.randint(0, len(background)) for _ in facts)
    woven, k = [], 0
    for place in range(len(background) + 1):
        while k < len(facts) and places[k] == place:
            woven.append(facts[k])
            k += 1
        woven += background[place:place + 1]
    return " ".join(woven)


class Generator:
    """example(i) for i >= 0. `data` is the project's data folder."""

    def __init__(self, data, evaluation=False, seed=None, background_words=(50, 140)):
        self._words = Words(data, evaluation)
        self._texts = texts(data, evaluation)
        self._seed = seed if seed is not None else EVALUATION_SEED if evaluation else TRAIN_SEED
        self._background_words = background_words

    def example(self, i):
        rng = random.Random(f"skills {self._seed} {i}")
        wanted = rng.randint(*self._background_words)
        background = []
        while sum(len(s.split()) for s in background) < wanted:
            background += sentences(rng.choice(self._texts))
        while len(background) > 2 and sum(len(s.split()) for s in background[:-1]) >= wanted:
            background.pop()
        threads, questions = [], []
        parts = [_key_values, rng.choice((_moves, _counter)), _record]
        for part in parts:
            facts, asked = part(rng, self._words)
            threads += facts
            questions += asked
        rng.shuffle(questions)
        return Example(_weave(rng, background, threads),
                       tuple(Question(ask, answer, (answer,), skill) for skill, ask, answer in questions))
