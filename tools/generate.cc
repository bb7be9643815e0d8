// `baton generate` and `baton chat`.
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "tools/commands.h"
#include "tools/inference_client.h"

namespace baton::tools {
namespace {

struct GenerateOptions {
  std::string router = "127.0.0.1:8090";
  std::string api_key;
  std::string model;
  std::string prompt;
  std::string system;
  std::string strategy;
  std::int64_t max_tokens = 256;
  double temperature = 0;
  std::vector<std::string> stop;
  std::uint64_t seed = 0;
  std::int64_t shared_prefix_tokens = -1;
  std::int64_t seam = -1;
  bool raw_text = false;
  bool timing = false;
  bool json = false;
};

void AddCommonOptions(CLI::App& cmd, GenerateOptions& o) {
  cmd.add_option("--router", o.router, "host:port of the router's gRPC API")->capture_default_str();
  cmd.add_option("--api-key", o.api_key, "where the router asks for one")->envname(kApiKeyVariable);
  cmd.add_option("--model", o.model, "model to ask; default: the only one");
  cmd.add_option("--system", o.system, "system message");
  cmd.add_option("--max-tokens", o.max_tokens, "tokens to generate at most")->capture_default_str();
  cmd.add_option("--temperature", o.temperature, "0 = greedy")->capture_default_str();
  cmd.add_option("--seed", o.seed, "seed of the sampler; 0 = random");
  cmd.add_option("--stop", o.stop, "stop string (repeatable)");
  cmd.add_option("--strategy", o.strategy,
                 "hand-off strategy: auto, oracle, raw, q4, reuse, scd, selective");
  cmd.add_option("--seam", o.seam,
                 "tokens at the end of a prefix that comes in codes that are computed all the same")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20));
  cmd.add_flag("--timing", o.timing, "print where the time to first token went");
}

v1::GenerateRequest BaseRequest(const GenerateOptions& o) {
  v1::GenerateRequest request;
  request.set_model(o.model);
  request.set_strategy(o.strategy);
  request.set_want_timing(true);
  request.mutable_sampling()->set_temperature(o.temperature);
  if (o.seed != 0) request.mutable_sampling()->set_seed(o.seed);
  request.mutable_stop()->set_max_tokens(o.max_tokens);
  for (const std::string& s : o.stop) request.mutable_stop()->add_stop(s);
  if (o.seam >= 0) request.set_handoff_seam(static_cast<std::uint32_t>(o.seam));
  if (o.shared_prefix_tokens >= 0) {
    request.set_shared_prefix_tokens(static_cast<std::uint32_t>(o.shared_prefix_tokens));
  }
  return request;
}

// Protobuf would refuse it with a message that says nothing to a user.
absl::Status CheckUtf8(const char* what, const std::string& text) {
  if (IsValidUtf8(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(what) + " is not valid UTF-8");
}

absl::Status CheckOptions(const GenerateOptions& o) {
  BATON_RETURN_IF_ERROR(CheckUtf8("--model", o.model));
  BATON_RETURN_IF_ERROR(CheckUtf8("--system", o.system));
  BATON_RETURN_IF_ERROR(CheckUtf8("--strategy", o.strategy));
  for (const std::string& s : o.stop) BATON_RETURN_IF_ERROR(CheckUtf8("--stop", s));
  return absl::OkStatus();
}

void PrintPiece(const std::string& text) { std::cout << text << std::flush; }

int Fail(const absl::Status& status) {
  std::cerr << "baton: " << status.message() << " (" << absl::StatusCodeToString(status.code())
            << ")\n";
  return 1;
}

void PrintJson(const GenerationRecord& record) {
  nlohmann::json out;
  out["text"] = record.text;
  out["token_ids"] = record.token_ids;
  std::string finished;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  if (google::protobuf::util::MessageToJsonString(record.finished, &finished, options).ok()) {
    out["finished"] = nlohmann::json::parse(finished);
  }
  std::cout << out.dump() << "\n";
}

int RunGenerate(const GenerateOptions& o) {
  std::string prompt = o.prompt;
  if (prompt.empty() || prompt == "-") {
    prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  absl::Status good = CheckOptions(o);
  if (good.ok()) good = CheckUtf8("the prompt", prompt);
  if (!good.ok()) return Fail(good);
  auto client = InferenceClient::Connect(o.router, o.api_key);
  if (!client.ok()) return Fail(client.status());
  v1::GenerateRequest request = BaseRequest(o);
  if (o.raw_text) {
    request.set_text(prompt);
  } else {
    auto* chat = request.mutable_chat();
    if (!o.system.empty()) {
      auto* m = chat->add_messages();
      m->set_role("system");
      m->set_content(o.system);
    }
    auto* m = chat->add_messages();
    m->set_role("user");
    m->set_content(prompt);
  }
  auto record =
      o.json ? (*client)->Generate(request, nullptr) : (*client)->Generate(request, PrintPiece);
  if (!o.json) std::cout << std::endl;
  if (!record.ok()) return Fail(record.status());
  if (o.json) PrintJson(*record);
  if (o.timing) std::cerr << DescribeTiming(record->finished) << "\n";
  return 0;
}

int RunChat(const GenerateOptions& o) {
  if (absl::Status s = CheckOptions(o); !s.ok()) return Fail(s);
  auto client = InferenceClient::Connect(o.router, o.api_key);
  if (!client.ok()) return Fail(client.status());
  v1::GenerateRequest request = BaseRequest(o);
  if (!o.system.empty()) {
    auto* m = request.mutable_chat()->add_messages();
    m->set_role("system");
    m->set_content(o.system);
  }
  std::cerr << "Type a message; an empty line or Ctrl-D ends the chat.\n";
  std::string line;
  while (std::cerr << "> " << std::flush, std::getline(std::cin, line) && !line.empty()) {
    if (absl::Status s = CheckUtf8("the message", line); !s.ok()) {
      Fail(s);
      continue;
    }
    auto* user = request.mutable_chat()->add_messages();
    user->set_role("user");
    user->set_content(line);
    auto record = (*client)->Generate(request, PrintPiece);
    std::cout << std::endl;
    if (!record.ok()) {
      // The turn did not happen: it must not stay in the history.
      request.mutable_chat()->mutable_messages()->RemoveLast();
      Fail(record.status());
      continue;
    }
    if (o.timing) std::cerr << DescribeTiming(record->finished) << "\n";
    auto* assistant = request.mutable_chat()->add_messages();
    assistant->set_role("assistant");
    assistant->set_content(record->text);
  }
  return 0;
}

}  // namespace

void AddGenerateCommand(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* cmd = app.add_subcommand("generate", "ask one question and stream the answer");
  AddCommonOptions(*cmd, *options);
  cmd->add_option("prompt", options->prompt, "the prompt; '-' or absent: standard input");
  cmd->add_flag("--raw", options->raw_text, "send the text as it is, without a chat template");
  cmd->add_option("--shared-prefix-tokens", options->shared_prefix_tokens,
                  "tokens of the prompt that other requests share; default: chosen by length")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{UINT32_MAX}));
  cmd->add_flag("--json", options->json, "print one JSON object at the end");
  cmd->callback([options, &exit_code] { exit_code = RunGenerate(*options); });
}

void AddChatCommand(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* cmd = app.add_subcommand("chat", "talk to a model");
  AddCommonOptions(*cmd, *options);
  cmd->callback([options, &exit_code] { exit_code = RunChat(*options); });
}

}  // namespace baton::tools
