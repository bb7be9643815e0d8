#include "tools/program_beside.h"

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <vector>

#include "CLI/CLI.hpp"

namespace baton::tools {
namespace {

int RunProgram(const std::string& name, const std::vector<std::string>& arguments) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (self.parent_path() / name).string();
  if (error || !std::filesystem::exists(program, error)) {
    std::cerr << "baton: " << program
              << " is not there: it needs a build with LibTorch (-DBATON_WITH_TORCH=ON)\n";
    return 1;
  }
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  std::cerr << "baton: " << program << " cannot be run\n";
  return 1;
}

}  // namespace

void AddProgramBeside(CLI::App& app, const std::string& name, const std::string& description,
                      const std::string& program, int& exit_code) {
  CLI::App* cmd = app.add_subcommand(name, description);
  cmd->set_help_flag();
  cmd->prefix_command();
  cmd->callback([cmd, program, &exit_code] { exit_code = RunProgram(program, cmd->remaining()); });
}

}  // namespace baton::tools
