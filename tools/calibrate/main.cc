// The program behind `baton calibrate`.
#include <exception>
#include <iostream>

#include "tools/calibrate/calibrate_command.h"

int main(int argc, char** argv) {
  try {
    return baton::tools::RunCalibrate(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "baton: " << e.what() << "\n";
    return 1;
  }
}
