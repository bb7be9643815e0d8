#include "common/scd/evaluate/evaluation_report.h"

#include <algorithm>
#include <cstddef>

#include "common/base/strings.h"
#include "common/base/version.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

Json IntervalJson(const Interval& i) { return Json::array({i.low, i.high}); }

Json SumsJson(const PredictionSums& s) {
  return {{"kl", s.kl}, {"nll", s.nll}, {"same_top1", s.same}};
}

Json PairJson(const Evaluation& e) {
  Json codecs = Json::array();
  for (const Evaluation::CodecInfo& c : e.codecs) {
    codecs.push_back({{"name", c.name},
                      {"path", c.path},
                      {"digest", c.digest},
                      {"bytes_per_token", c.bytes_per_token}});
  }
  return {{"producer_weights", e.producer_weights},
          {"consumer_weights", e.consumer_weights},
          {"tokenizer", e.tokenizer},
          {"layers", e.model.layers},
          {"hidden", e.model.hidden},
          {"kv_heads", e.model.kv_heads},
          {"head_dim", e.model.head_dim},
          {"codecs", codecs}};
}

Json SettingsJson(const EvaluationOptions& o) {
  return {{"prefix", o.prefix},
          {"continuation", o.continuation},
          {"documents", o.documents},
          {"questions", o.questions},
          {"max_answer", o.max_answer},
          {"cuts", o.cuts},
          {"selective_documents", o.selective_documents},
          {"resamples", o.resamples},
          {"seed", o.seed}};
}

Json TextsJson(const Evaluation& e) {
  Json files = Json::array();
  for (const DocumentSet::File& f : e.files) {
    files.push_back({{"path", f.path},
                     {"documents", f.documents},
                     {"tokens", f.tokens},
                     {"too_short", f.too_short},
                     {"repeated", f.repeated}});
  }
  Json texts = {{"files", files}, {"documents_digest", e.documents_digest}};
  if (!e.questions_path.empty()) {
    texts["questions"] = {{"path", e.questions_path},
                          {"digest", e.questions_digest},
                          {"left_out", e.questions_left_out},
                          {"form", e.answer_form}};
  }
  return texts;
}

Json DocumentTableJson(const Evaluation& e, const DocumentTable& t) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < t.rows.size(); ++i) {
    const DocumentTable::Row& r = t.rows[i];
    rows.push_back({{"way", e.ways[i].name},
                    {"kl", r.kl},
                    {"kl_error", r.kl_error},
                    {"kl_to_raw", r.kl_to_raw},
                    {"kl_to_raw_95", IntervalJson(r.kl_to_raw_95)},
                    {"nll", r.nll},
                    {"nll_change_error", r.nll_error},
                    {"perplexity", r.perplexity},
                    {"top1", r.top1}});
  }
  return {{"name", t.name},
          {"documents", t.documents},
          {"predictions", t.predictions},
          {"full_length", t.full_length},
          {"oracle_nll", t.oracle_nll},
          {"oracle_perplexity", t.oracle_perplexity},
          {"rows", rows}};
}

Json AnswerTableJson(const AnswerTable& t) {
  Json rows = Json::array();
  for (const AnswerTable::Row& r : t.rows) {
    rows.push_back({{"way", r.name},
                    {"exact_match", r.exact},
                    {"f1", r.f1},
                    {"f1_change_95", IntervalJson(r.f1_change_95)},
                    {"nll", r.nll},
                    {"kl", r.kl}});
  }
  return {{"skill", t.name}, {"questions", t.questions}, {"rows", rows}};
}

Json WaysJson(const Evaluation& e) {
  Json ways = Json::array();
  for (std::size_t i = 0; i < e.ways.size(); ++i) {
    const WayInfo& w = e.ways[i];
    ways.push_back({{"name", w.name},
                    {"family", w.family},
                    {"bytes_per_token", w.bytes_per_token},
                    {"default", w.is_default},
                    {"compute", w.compute},
                    {"state_error",
                     {{"keys", e.state_errors[i].keys},
                      {"values", e.state_errors[i].values},
                      {"hidden", e.state_errors[i].hidden}}}});
  }
  return ways;
}

Json EachDocumentJson(const Evaluation& e) {
  Json documents = Json::array();
  for (const DocumentScore& d : e.documents) {
    Json sums = Json::array();
    for (const PredictionSums& s : d.sums) sums.push_back(SumsJson(s));
    documents.push_back({{"file", d.file},
                         {"prefix", d.prefix},
                         {"predictions", d.predictions},
                         {"oracle_then_ways", sums}});
  }
  return documents;
}

Json EachQuestionJson(const Evaluation& e) {
  Json questions = Json::array();
  for (const AnsweredQuestion& q : e.answers) {
    Json answers = Json::array();
    for (const Answer& a : q.answers) {
      Json answer = {{"text", a.text}, {"exact", a.exact}, {"f1", a.f1}};
      answer.update(SumsJson(a.sums));
      answers.push_back(std::move(answer));
    }
    questions.push_back({{"skill", q.skill}, {"tokens", q.tokens}, {"answers", answers}});
  }
  return questions;
}

std::string BytesText(double bytes) { return fmt::format("{:.0f}", bytes); }
std::string Range(const Interval& i) { return fmt::format("{:.3f} to {:.3f}", i.low, i.high); }

TextTable DocumentText(const Evaluation& e, const DocumentTable& t) {
  TextTable table{.title = Cat("Documents: ", t.name),
                  .head = {"K/V of the prefix", "B/token", "of raw", "compute", "KL", "+-",
                           "KL / raw's", "95 %", "NLL", "+-", "PPL", "top-1"},
                  .rows = {},
                  .note = {}};
  table.rows.push_back({"oracle", "0", "", "1", "0", "", "", "",
                        fmt::format("{:.4f}", t.oracle_nll), "",
                        fmt::format("{:.3f}", t.oracle_perplexity), "1"});
  for (std::size_t i = 0; i < t.rows.size(); ++i) {
    const DocumentTable::Row& r = t.rows[i];
    table.rows.push_back(
        {e.ways[i].name, BytesText(e.ways[i].bytes_per_token),
         fmt::format("1/{:.1f}", e.ways[0].bytes_per_token / e.ways[i].bytes_per_token),
         fmt::format("{:.2f}", e.ways[i].compute), fmt::format("{:.5f}", r.kl),
         fmt::format("{:.5f}", r.kl_error), fmt::format("{:.3f}", r.kl_to_raw),
         Range(r.kl_to_raw_95), fmt::format("{:.4f}", r.nll), fmt::format("{:.4f}", r.nll_error),
         fmt::format("{:.3f}", r.perplexity), fmt::format("{:.4f}", r.top1)});
  }
  const EvaluationOptions& o = e.options;
  const std::string length =
      Cat(o.prefix, " tokens handed over and ", o.continuation, " after them");
  table.note = t.full_length > 0
                   ? Cat(t.predictions, " predictions of ", t.documents,
                         " documents; PPL over the ", t.full_length, " that have ", length, ".")
                   : Cat(t.predictions, " predictions of ", t.documents, " documents, none with ",
                         length, ": PPL over all, each with as much as it has.");
  return table;
}

TextTable AnswerText(const AnswerTable& t) {
  TextTable table{
      .title = Cat("Questions: ", t.name),
      .head = {"K/V of the prefix", "EM", "F1", "F1 - oracle's, 95 %", "answer NLL", "answer KL"},
      .rows = {},
      .note = Cat(t.questions, " questions, greedy answers.")};
  for (const AnswerTable::Row& r : t.rows) {
    table.rows.push_back({r.name, fmt::format("{:.3f}", r.exact), fmt::format("{:.3f}", r.f1),
                          Range(r.f1_change_95), fmt::format("{:.4f}", r.nll),
                          fmt::format("{:.5f}", r.kl)});
  }
  return table;
}

// Of ways at their defaults; every layer is in the JSON.
TextTable StateText(const Evaluation& e) {
  TextTable table{.title = "Relative state error by layer",
                  .head = {"layer"},
                  .rows = {},
                  .note =
                      "r_K and r_V: keys and values of the prefix against the consumer's own; h: "
                      "states of the tokens after it, behind the layer, against oracle's."};
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < e.ways.size(); ++i) {
    if (!e.ways[i].is_default) continue;
    shown.push_back(i);
    for (const char* what : {"r_K", "r_V", "h"})
      table.head.push_back(Cat(e.ways[i].name, " ", what));
  }
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(e.model.layers); ++layer) {
    std::vector<std::string> row = {Cat(layer)};
    for (const std::size_t i : shown) {
      const StateErrors& s = e.state_errors[i];
      for (const auto* errors : {&s.keys, &s.values, &s.hidden}) {
        row.push_back(fmt::format("{:.4f}", (*errors)[layer]));
      }
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

// Columns that a terminal gives a text of UTF-8 without wide characters.
std::size_t Columns(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string MarkdownCell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

std::string EvaluationJson(const Evaluation& e) {
  Json document_tables = Json::array(), answer_tables = Json::array();
  for (const DocumentTable& t : e.document_tables) {
    document_tables.push_back(DocumentTableJson(e, t));
  }
  for (const AnswerTable& t : e.answer_tables) answer_tables.push_back(AnswerTableJson(t));
  Json json = {{"format", "baton-evaluation-scd"},
               {"format_version", 1},
               {"baton", std::string(Version())},
               {"pair", PairJson(e)},
               {"settings", SettingsJson(e.options)},
               {"texts", TextsJson(e)},
               {"ways", WaysJson(e)},
               {"document_tables", document_tables},
               {"documents", EachDocumentJson(e)}};
  if (!e.answers.empty()) {
    json["answer_ways"] = e.answer_ways;
    json["answer_tables"] = answer_tables;
    json["questions"] = EachQuestionJson(e);
  }
  // Paths need not be UTF-8.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<std::string> EvaluationFacts(const Evaluation& e) {
  std::vector<std::string> facts = {Cat("Producer ", e.producer_weights, ", consumer ",
                                        e.consumer_weights, ": ", e.model.layers, " layers, ",
                                        e.model.kv_heads, " KV heads of ", e.model.head_dim, ".")};
  for (const Evaluation::CodecInfo& c : e.codecs) {
    facts.push_back(Cat("Codec ", c.name, ": ", c.path, ", ", BytesText(c.bytes_per_token),
                        " bytes a token, digest ", c.digest, "."));
  }
  for (const DocumentSet::File& f : e.files) {
    facts.push_back(
        Cat("Text: ", f.path, ", ", f.documents, " documents of ", f.tokens, " tokens together."));
  }
  if (!e.questions_path.empty()) {
    facts.push_back(Cat("Questions: ", e.questions_path, " (", e.questions_left_out,
                        " left out for their length), asked in the form \"", e.answer_form, "\"."));
  }
  facts.push_back(Cat(
      "KL in nats a predicted token to the consumer's own prefill (oracle), teacher-forced; the "
      "first ",
      kSinkTokens,
      " positions are always its own. +- is a standard error over documents (NLL: of the "
      "difference to oracle); intervals are paired bootstraps of ",
      e.options.resamples, " draws, seed ", e.options.seed, "."));
  return facts;
}

std::vector<TextTable> EvaluationTables(const Evaluation& e) {
  std::vector<TextTable> tables;
  for (const DocumentTable& t : e.document_tables) tables.push_back(DocumentText(e, t));
  for (const AnswerTable& t : e.answer_tables) tables.push_back(AnswerText(t));
  tables.push_back(StateText(e));
  return tables;
}

std::string MarkdownTable(const TextTable& table) {
  std::vector<std::vector<std::string>> lines = {table.head};
  lines.insert(lines.end(), table.rows.begin(), table.rows.end());
  std::vector<std::size_t> widths(table.head.size(), 3);
  for (auto& line : lines) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      line[c] = MarkdownCell(line[c]);
      widths[c] = std::max(widths[c], Columns(line[c]));
    }
  }
  std::string out;
  for (std::size_t l = 0; l < lines.size(); ++l) {
    for (std::size_t c = 0; c < lines[l].size(); ++c) {
      const std::string gap(widths[c] - Columns(lines[l][c]), ' ');
      out += c == 0 ? Cat("| ", lines[l][c], gap) : Cat(" | ", gap, lines[l][c]);
    }
    out += " |\n";
    if (l != 0) continue;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      out += Cat("|", c == 0 ? "-" : " ", std::string(widths[c], '-'), c == 0 ? "-" : ":");
    }
    out += "|\n";
  }
  return out;
}

std::string EvaluationMarkdown(const Evaluation& e) {
  std::string out = "# What handing over K/V costs\n\n";
  for (const std::string& fact : EvaluationFacts(e)) out += Cat("- ", fact, "\n");
  for (const TextTable& table : EvaluationTables(e)) {
    out += Cat("\n## ", table.title, "\n", table.note, "\n\n", MarkdownTable(table));
  }
  return out;
}

}  // namespace baton
