// `baton eval`: hands over to baton-eval, which builds with LibTorch have.
#include "CLI/CLI.hpp"
#include "tools/commands.h"
#include "tools/program_beside.h"

namespace baton::tools {

void AddEvalCommand(CLI::App& app, int& exit_code) {
  AddProgramBeside(app, "eval", "measure what handing over K/V costs a consumer", "baton-eval",
                   exit_code);
}

}  // namespace baton::tools
