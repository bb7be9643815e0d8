// The program behind `baton eval`.
#include <exception>
#include <iostream>

#include "tools/eval/eval_command.h"

int main(int argc, char** argv) {
  try {
    return baton::tools::RunEval(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "baton: " << e.what() << "\n";
    return 1;
  }
}
