// `baton calibrate`: hands over to baton-calibrate, which builds with LibTorch have.
#include "CLI/CLI.hpp"
#include "tools/commands.h"
#include "tools/program_beside.h"

namespace baton::tools {

void AddCalibrateCommand(CLI::App& app, int& exit_code) {
  AddProgramBeside(app, "calibrate", "make the codec of a producer and a consumer",
                   "baton-calibrate", exit_code);
}

}  // namespace baton::tools
