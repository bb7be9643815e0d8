// `baton config check FILE` and `baton config reference`.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/config/load.h"
#include "decode_node/serve/decode_config.h"
#include "prefill_node/prefill_config.h"
#include "router/route/router_config.h"
#include "tools/commands.h"
#include "tools/up_file.h"

namespace baton::tools {
namespace {

struct CheckOptions {
  std::string file;
  std::string role;
  std::vector<std::string> sets;
  bool quiet = false;
};

template <typename T>
int Check(const config::Section<T>& section, const CheckOptions& o) {
  config::LoadOptions options;
  options.sets = o.sets;
  const auto loaded = config::LoadFile(section, o.file, options);
  if (!loaded.ok()) {
    std::cerr << loaded.status().message() << "\n";
    return 1;
  }
  if (!o.quiet) std::cout << config::PrintEffective(section, *loaded);
  std::cerr << o.file << ": a good " << o.role << " configuration\n";
  return 0;
}

int CheckUp(const CheckOptions& o) {
  const auto nodes = ReadUpFile(o.file);
  if (!nodes.ok()) {
    std::cerr << nodes.status().message() << "\n";
    return 1;
  }
  std::cerr << o.file << ": a good file for `baton up`, " << nodes->size() << " nodes\n";
  return 0;
}

int RunCheck(const CheckOptions& o) {
  if (o.role == "up") return CheckUp(o);
  if (o.role == "prefill") return Check(PrefillSection(), o);
  if (o.role == "decode") return Check(DecodeSection(), o);
  return Check(RouterSection(), o);
}

int RunReference(const std::string& role) {
  if (role.empty() || role == "prefill") {
    std::cout << config::Reference(PrefillSection(), "baton-prefill") << "\n";
  }
  if (role.empty() || role == "decode") {
    std::cout << config::Reference(DecodeSection(), "baton-decode") << "\n";
  }
  if (role.empty() || role == "router") {
    std::cout << config::Reference(RouterSection(), "baton-router") << "\n";
  }
  return 0;
}

}  // namespace

void AddConfigCommand(CLI::App& app, int& exit_code) {
  CLI::App* cmd = app.add_subcommand("config", "check a configuration file, or print every key");
  cmd->require_subcommand(1);
  const auto roles = CLI::IsMember({"prefill", "decode", "router"});

  auto options = std::make_shared<CheckOptions>();
  CLI::App* check = cmd->add_subcommand("check", "say what is wrong with a file, by line");
  check->add_option("file", options->file, "the YAML file")->required();
  check->add_option("--role", options->role, "whose file: a daemon's, or that of `baton up`")
      ->required()
      ->check(CLI::IsMember({"prefill", "decode", "router", "up"}));
  check->add_option("--set", options->sets, "override key=value (repeatable; not with `up`)");
  check->add_flag("--quiet", options->quiet, "do not print the effective configuration");
  check->callback([options, &exit_code] { exit_code = RunCheck(*options); });

  auto role = std::make_shared<std::string>();
  CLI::App* reference = cmd->add_subcommand("reference", "print every key, its default and limits");
  reference->add_option("--role", *role, "prefill, decode or router; default: all three")
      ->check(roles);
  reference->callback([role, &exit_code] { exit_code = RunReference(*role); });
}

}  // namespace baton::tools
