// An evaluation as JSON with everything in it, and as tables.
#pragma once

#include <string>
#include <vector>

#include "common/scd/evaluate/evaluation.h"

namespace baton {

// docs/evaluation.md has the fields.
std::string EvaluationJson(const Evaluation& evaluation);

struct TextTable {
  std::string title;
  std::vector<std::string> head;               // the first column names rows
  std::vector<std::vector<std::string>> rows;  // as wide as the head
  std::string note;                            // may be empty
};

// What was compared, in sentences: pair, texts, how scores are meant.
std::vector<std::string> EvaluationFacts(const Evaluation& evaluation);
std::vector<TextTable> EvaluationTables(const Evaluation& evaluation);
// One table, aligned.
std::string MarkdownTable(const TextTable& table);
// Facts and tables.
std::string EvaluationMarkdown(const Evaluation& evaluation);

}  // namespace baton
