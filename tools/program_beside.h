// A subcommand that is a program of its own, beside this one: for what only some builds have.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace baton::tools {

// Every argument after `name` is the program's, --help too. The program takes this one's place; it
// is an error, said on stderr with exit code 1, when it is not there.
void AddProgramBeside(CLI::App& app, const std::string& name, const std::string& description,
                      const std::string& program, int& exit_code);

}  // namespace baton::tools
