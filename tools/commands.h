// The subcommands of `baton`. Each adds itself to the CLI11 app; the chosen one's exit code is left
// in `exit_code`: 0 done, 1 it failed, 2 bad usage.
#pragma once

namespace CLI {
class App;
}

namespace baton::tools {

void AddUpCommand(CLI::App& app, int& exit_code);
void AddGenerateCommand(CLI::App& app, int& exit_code);
void AddChatCommand(CLI::App& app, int& exit_code);
void AddInspectCommand(CLI::App& app, int& exit_code);
void AddCalibrateCommand(CLI::App& app, int& exit_code);
void AddEvalCommand(CLI::App& app, int& exit_code);
void AddConfigCommand(CLI::App& app, int& exit_code);
void AddBenchCommand(CLI::App& app, int& exit_code);

}  // namespace baton::tools
