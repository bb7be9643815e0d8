"""The generator of skills: its answers follow from its texts, read here by rules of their own."""
import json
import re
import tempfile
import unittest

import small_data
from consumers import skills

NUMBER = r"(\d+)"


def moves_of(context, thing):
    """The places of a thing in the order of the text."""
    pattern = (rf"The {thing} is in the (\w+)\.|(?:moved|carried) the {thing} to the (\w+)\.|"
               rf"the {thing} was taken to the (\w+) by")
    return [next(g for g in m.groups() if g) for m in re.finditer(pattern, context)]


def coins_of(context, thing):
    total = int(re.search(rf"box marked {thing} held {NUMBER} coins", context)[1])
    total += sum(map(int, re.findall(rf"put {NUMBER} coins into the box marked {thing}\.", context)))
    return total - sum(map(int, re.findall(rf"took {NUMBER} coins out of the box marked {thing}\.", context)))


class Skills(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        small_data.write(f"{cls.folder.name}/data")
        cls.data = f"{cls.folder.name}/data"
        cls.generator = skills.Generator(cls.data)
        cls.examples = [cls.generator.example(i) for i in range(200)]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def questions(self, skill):
        found = [(e, q) for e in self.examples for q in e.questions if q.skill == skill]
        self.assertGreater(len(found), 100)
        return found

    def test_document_i_is_always_the_same(self):
        again = skills.Generator(self.data)
        self.assertEqual([again.example(i) for i in (150, 3)], [self.examples[150], self.examples[3]])
        self.assertNotEqual(skills.Generator(self.data, seed=2).example(3), self.examples[3])

    def test_a_key_is_bound_once_to_the_answer(self):
        for example, question in self.questions("key_value"):
            key = re.search(r"(?:for|of|to) (?:the )?(.+?)[?.] Reply", question.text)[1]
            facts = [s for s in re.split(r"(?<=\.) ", example.context)
                     if re.search(rf"\b{re.escape(key)} (?:is|has|uses) ", s)
                     and s.endswith(f" {question.answer}.")]
            self.assertEqual(len(facts), 1, (key, question, example.context))

    def test_the_last_move_counts(self):
        for example, question in self.questions("state"):
            if thing := re.match(r"Where is the (\w+) at the end", question.text):
                self.assertEqual(question.answer, moves_of(example.context, thing[1])[-1])
            elif thing := re.match(r"Where was the (\w+) just before", question.text):
                self.assertEqual(question.answer, moves_of(example.context, thing[1])[-2])
            else:
                thing = re.match(r"How many coins are in the box marked (\w+) at", question.text)
                self.assertEqual(question.answer, str(coins_of(example.context, thing[1])))

    def test_json_has_the_fields_asked_for_in_their_order(self):
        for example, question in self.questions("json"):
            number, fields = re.match(r"Give order (\d+) as JSON on one line with the fields (.*)\.", question.text
                                      ).groups()
            answer = json.loads(question.answer)
            self.assertEqual(list(answer), fields.split(", "))
            for name, value in answer.items():
                sentences = [s for s in re.split(r"(?<=\.) ", example.context) if number in s]
                self.assertTrue(any(str(value) in s for s in sentences), (name, value, sentences))

    def test_evaluation_has_words_and_texts_of_its_own(self):
        held = skills.Generator(self.data, evaluation=True)
        self.assertTrue(held.example(0).questions)
        mine, theirs = skills.Words(self.data, False), skills.Words(self.data, True)
        for kind in ("nouns", "adjectives", "people"):
            self.assertFalse(set(getattr(mine, kind)) & set(getattr(theirs, kind)), kind)
            self.assertTrue(getattr(theirs, kind), kind)
        self.assertFalse(set(skills.texts(self.data, False)) & set(skills.texts(self.data, True)))


if __name__ == "__main__":
    unittest.main()
