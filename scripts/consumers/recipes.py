"""What each consumer trains on and how: the only place with hyperparameters."""
import dataclasses

from . import batches, data_code, data_qa, skills, text


@dataclasses.dataclass(frozen=True)
class Recipe:
    """`tokens` are trained on in steps of `step_tokens`; a linear warm-up over the first `warmup` of
    them, a cosine to a twentieth of `rate` over the last `cooldown`. Drift grows from qa over code to
    skills."""
    rate: float
    step_tokens: int
    sources: str
    task: str
    tokens: int = 1_050_000
    warmup: float = 0.05
    cooldown: float = 0.5
    micro_tokens: int = 1280


RECIPES = {
    "qa": Recipe(rate=2e-4, step_tokens=4096, sources=data_qa.SOURCES,
                 task="short-answer questions on a paragraph (light drift)"),
    "code": Recipe(rate=4e-4, step_tokens=4096, sources=data_code.SOURCES,
                   task="Python source (a domain)"),
    "skills": Recipe(rate=1e-3, step_tokens=2048, sources=skills.SOURCES,
                     task="exact key-value binding, state tracking and field extraction to JSON (strong drift)"),
}

MAX_DOCUMENT = 1024  # tokens; longer ones are left out


def stream(consumer, data, tokenizer, seed, code_root=None):
    """The endless stream of training documents of a consumer."""
    if consumer == "skills":
        generator = skills.Generator(data, seed=seed)
        return batches.Generated(lambda i: text.chat_document(tokenizer, generator.example(i)))
    if consumer == "qa":
        documents = [text.chat_document(tokenizer, e) for e in data_qa.examples(data)]
    else:
        files = data_code.files(code_root)
        documents = [text.plain_document(w) for w in data_code.windows(tokenizer, files, held_out=False)]
    return batches.Shuffled([d for d in documents if len(d) <= MAX_DOCUMENT], seed)
