// `baton calibrate`: hands over to baton-calibrate, which builds with LibTorch have.
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tools/commands.h"

namespace baton::tools {
namespace {

int RunProgram(const std::vector<std::string>& arguments) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (self.parent_path() / "baton-calibrate").string();
  if (error || !std::filesystem::exists(program, error)) {
    std::cerr << "baton: " << program
              << " is not there: calibration needs a build with LibTorch "
                 "(-DBATON_WITH_TORCH=ON)\n";
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

void AddCalibrateCommand(CLI::App& app, int& exit_code) {
  CLI::App* cmd = app.add_subcommand("calibrate", "make the codec of a producer and a consumer");
  // Every argument is the program's, --help too.
  cmd->set_help_flag();
  cmd->prefix_command();
  cmd->callback([cmd, &exit_code] { exit_code = RunProgram(cmd->remaining()); });
}

}  // namespace baton::tools
