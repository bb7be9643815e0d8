// The `baton` command.
#include <exception>
#include <iostream>
#include <string>

#include "CLI/CLI.hpp"
#include "common/base/version.h"
#include "tools/commands.h"

int main(int argc, char** argv) {
  CLI::App app{"Baton: disaggregated serving of many fine-tunes from one base prefill", "baton"};
  app.set_version_flag("--version", "baton " + std::string(baton::Version()));
  app.fallthrough(false);
  int exit_code = 0;
  baton::tools::AddUpCommand(app, exit_code);
  baton::tools::AddChatCommand(app, exit_code);
  baton::tools::AddGenerateCommand(app, exit_code);
  baton::tools::AddBenchCommand(app, exit_code);
  baton::tools::AddCalibrateCommand(app, exit_code);
  baton::tools::AddEvalCommand(app, exit_code);
  baton::tools::AddInspectCommand(app, exit_code);
  baton::tools::AddConfigCommand(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : 2;
  } catch (const std::exception& e) {
    std::cerr << "baton: " << e.what() << "\n";
    return 1;
  }
  if (app.get_subcommands().empty()) {
    std::cerr << app.help();
    return 2;
  }
  return exit_code;
}
