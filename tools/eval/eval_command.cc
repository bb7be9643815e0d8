#include "tools/eval/eval_command.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/machine.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/scd/evaluate/evaluation.h"
#include "common/scd/evaluate/evaluation_report.h"
#include "common/scd/evaluate/html_report.h"
#include "kernels/executor.h"
#include "kernels/kv_page.h"
#include "tools/pair/pair.h"
#include "tools/pair/stages.h"

namespace baton::tools {
namespace {

struct Options {
  PairFiles files;
  std::vector<std::string> codecs;
  std::vector<std::string> data;
  std::string questions;
  std::string chat_template;
  std::string out;
  bool quick = false;
  bool full = false;
  int threads = 0;  // 0: all processors
  // Nothing: as --quick, --full or neither has it.
  std::optional<std::int32_t> prefix, continuation;
  std::optional<std::int64_t> documents, max_questions;
  std::uint64_t seed = 0;
};

EvaluationOptions Settings(const Options& o) {
  EvaluationOptions e;
  if (o.quick) {
    e.prefix = 256;
    e.continuation = 64;
    e.documents = 8;
    e.questions = 20;
    e.selective_documents = 2;
    e.max_answer = 32;
  } else if (o.full) {
    e.documents = 0;
    e.questions = 0;
  }
  e.prefix = o.prefix.value_or(e.prefix);
  e.continuation = o.continuation.value_or(e.continuation);
  e.documents = o.documents.value_or(e.documents);
  e.questions = o.max_questions.value_or(e.questions);
  e.seed = o.seed;
  return e;
}

absl::Status WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  if (!file.flush()) return absl::UnavailableError(Cat(path.string(), ": cannot be written"));
  return absl::OkStatus();
}

class Command {
 public:
  explicit Command(Options options)
      : options_(std::move(options)), executor_(MakeThreadPool(options_.threads)) {}

  absl::Status Run() {
    // Before an hour of work is lost for a folder that cannot be.
    std::error_code error;
    std::filesystem::create_directories(options_.out, error);
    if (!std::filesystem::is_directory(options_.out)) {
      return absl::InvalidArgumentError(Cat("--out ", options_.out, ": cannot be made a folder"));
    }
    EvaluationOptions settings = Settings(options_);
    settings.progress = [this](std::string_view stage, std::int64_t done, std::int64_t total) {
      stages_(stage, done, total);
    };
    BATON_ASSIGN_OR_RETURN(const std::vector<NamedCodec> codecs, LoadCodecs());
    BATON_ASSIGN_OR_RETURN(const LoadedPair loaded,
                           LoadPair(options_.files, settings.progress, *executor_));
    BATON_RETURN_IF_ERROR(CheckCodecs(loaded.pair, codecs));
    BATON_ASSIGN_OR_RETURN(const EvaluationTexts texts, ReadTexts(loaded, settings));
    BATON_ASSIGN_OR_RETURN(
        const Evaluation evaluation,
        Evaluate(loaded.pair, codecs, texts, loaded.tokenizer(), settings, *executor_));
    const std::filesystem::path out = options_.out;
    const std::string markdown = EvaluationMarkdown(evaluation);
    BATON_RETURN_IF_ERROR(WriteText(out / "eval.json", EvaluationJson(evaluation)));
    BATON_RETURN_IF_ERROR(WriteText(out / "eval.md", markdown));
    BATON_RETURN_IF_ERROR(WriteText(out / "eval.html", EvaluationHtml(evaluation)));
    std::cout << markdown << "\n" << (out / "eval.json").string() << ", eval.md, eval.html\n";
    return absl::OkStatus();
  }

 private:
  // By the names of their files; of equal names, by paths.
  absl::StatusOr<std::vector<NamedCodec>> LoadCodecs() const {
    std::vector<NamedCodec> codecs;
    for (const std::string& path : options_.codecs) {
      BATON_ASSIGN_OR_RETURN(Codec codec, LoadCodec(path));
      std::string name = std::filesystem::path(path).stem().string();
      const bool taken = std::any_of(codecs.begin(), codecs.end(),
                                     [&](const NamedCodec& c) { return c.name == name; });
      codecs.push_back({taken ? path : std::move(name), path, std::move(codec)});
    }
    return codecs;
  }

  absl::StatusOr<EvaluationTexts> ReadTexts(const LoadedPair& loaded,
                                            const EvaluationOptions& settings) const {
    EvaluationTexts texts;
    const auto chat = ChatOf(loaded.models, options_.chat_template);
    BATON_ASSIGN_OR_RETURN(texts.documents, ReadDocuments(options_.data, loaded.tokenizer(), chat,
                                                          settings.prefix + settings.continuation));
    if (options_.questions.empty()) return texts;
    if (!chat.ok()) return chat.status();
    texts.form = FormOf(loaded, *chat);
    const auto context =
        static_cast<std::int32_t>(loaded.pair.consumer.model->config().max_context);
    BATON_ASSIGN_OR_RETURN(texts.questions,
                           ReadQuestions(options_.questions, loaded.tokenizer(), texts.form,
                                         2 * kSinkTokens, context - settings.max_answer));
    return texts;
  }

  static AnswerForm FormOf(const LoadedPair& loaded, std::optional<ChatTemplate> chat) {
    AnswerForm form{.chat = chat, .end = {}};
    if (!form.chat) return form;
    if (const auto id = loaded.tokenizer().TokenToId(form.chat->end_of_turn())) {
      form.end.push_back(*id);
    }
    for (const std::int32_t id : loaded.pair.consumer.model->config().eos_ids) {
      if (std::find(form.end.begin(), form.end.end(), id) == form.end.end()) {
        form.end.push_back(id);
      }
    }
    return form;
  }

  const Options options_;
  const std::unique_ptr<Executor> executor_;
  Stages stages_;
};

void AddScdOptions(CLI::App& app, Options& o) {
  app.add_option("--producer", o.files.producer,
                 "whose prefill is handed over: a .gguf file or Hugging Face folder")
      ->required();
  app.add_option("--consumer", o.files.consumer, "who goes on from it: a file or folder")
      ->required();
  app.add_option("--adapter", o.files.adapter, "the consumer's PEFT LoRA folder");
  app.add_option("--codec", o.codecs, "codecs of this pair, from `baton calibrate`");
  app.add_option("--data", o.data,
                 "texts that the codecs have not learned from: .txt, or .jsonl with \"text\", "
                 "\"context\" or \"messages\"")
      ->required();
  app.add_option("--questions", o.questions,
                 ".jsonl with \"context\", \"question\", \"answer\" or \"references\", \"skill\"");
  app.add_option("--chat-template", o.chat_template,
                 "how messages and questions are put: a template's name, or none; default: the "
                 "consumer's own");
  app.add_option("--out", o.out, "folder for eval.json, eval.md and eval.html")->required();
  auto* quick = app.add_flag("--quick", o.quick, "a few short documents and questions");
  app.add_flag("--full", o.full, "every document and question")->excludes(quick);
  app.add_option("--prefix", o.prefix, "tokens of a document that are handed over, at most")
      ->check(CLI::Range(2 * kSinkTokens, 1 << 20));
  app.add_option("--continuation", o.continuation, "tokens after them, at most")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--documents", o.documents, "at most; 0: all")->check(CLI::NonNegativeNumber);
  app.add_option("--max-questions", o.max_questions, "at most; 0: all")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--threads", o.threads, "default: all processors")->check(CLI::Range(1, 1024));
  app.add_option("--seed", o.seed, "of the choice of documents and the intervals")
      ->capture_default_str();
}

}  // namespace

int RunEval(int argc, const char* const* argv) {
  CLI::App app{"measure what serving costs in quality", "baton eval"};
  app.require_subcommand(1);
  Options options;
  AddScdOptions(*app.add_subcommand("scd", "K/V from a producer against a consumer's own prefill"),
                options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (options.threads == 0) options.threads = EffectiveCpuCount();
  if (absl::Status status = Command(std::move(options)).Run(); !status.ok()) {
    std::cerr << "baton: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace baton::tools
