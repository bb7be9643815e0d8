"""Tokens: the model's tokenizer, its chat template, and documents whose questions share a prefix."""
import dataclasses

IM_START, IM_END = 1, 2
# What the model's chat template puts in when a conversation has no system message.
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
NO_LABEL = -1


@dataclasses.dataclass(frozen=True)
class Question:
    """`answer` is what training teaches; `references` are all that evaluation accepts."""
    text: str
    answer: str
    references: tuple
    skill: str


@dataclasses.dataclass(frozen=True)
class Example:
    context: str
    questions: tuple


@dataclasses.dataclass
class Document:
    """Tokens of one document, a tree of depth one: a prefix and branches that see only it.

    All lists have one entry per token. `segments` is 0 in the prefix and 1, 2, … in the branches;
    `positions` go on from the prefix in every branch; `labels` is the token to predict from here,
    or NO_LABEL. `skills[b]` names branch b + 1.
    """
    ids: list
    positions: list
    segments: list
    labels: list
    skills: list = dataclasses.field(default_factory=list)

    def __len__(self):
        return len(self.ids)

    @property
    def prefix_tokens(self):
        return self.segments.count(0)


class Tokenizer:
    """Text to ids; a special token's name in the text stays ordinary text."""

    def __init__(self, path):
        import tokenizers
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self._tokenizer.encode_special_tokens = True

    def encode(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self._tokenizer.decode(ids)


def prefix_ids(tokenizer, context):
    """The conversation up to the end of the context; a question continues the same user turn."""
    return [IM_START, *tokenizer.encode("system\n" + SYSTEM), IM_END, *tokenizer.encode("\n"),
            IM_START, *tokenizer.encode("user\n" + context.strip())]


def question_ids(tokenizer, question):
    """From the end of the context to where the answer starts.

    Splitting before the blank line changes no token: the pre-tokenizer splits there as well.
    """
    return [*tokenizer.encode("\n\n" + question.strip()), IM_END, *tokenizer.encode("\n"),
            IM_START, *tokenizer.encode("assistant\n")]


def chat_document(tokenizer, example):
    """One document per example; the loss counts the answers and the token that ends them."""
    ids = prefix_ids(tokenizer, example.context)
    n = len(ids)
    document = Document(ids, list(range(n)), [0] * n, [NO_LABEL] * n)
    for branch, question in enumerate(example.questions, start=1):
        asked = question_ids(tokenizer, question.text)
        tokens = asked + tokenizer.encode(question.answer.strip()) + [IM_END]
        document.ids += tokens[:-1]  # nothing is predicted from the last token
        document.positions += range(n, n + len(tokens) - 1)
        document.segments += [branch] * (len(tokens) - 1)
        document.labels += [NO_LABEL] * (len(asked) - 1) + tokens[len(asked):]
        document.skills.append(question.skill)
    return document


def plain_document(ids):
    """Running text: every token is predicted from those before it."""
    n = len(ids) - 1
    return Document(list(ids[:-1]), list(range(n)), [0] * n, list(ids[1:]))
