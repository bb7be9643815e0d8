// `baton calibrate`: makes the codec of a producer and a consumer. A program of its own
// (baton-calibrate), so that LibTorch is loaded by nobody who does not calibrate.
#pragma once

namespace baton::tools {

// Exit code: 0 done, 1 it failed, 2 bad usage. What went wrong is said on stderr.
int RunCalibrate(int argc, const char* const* argv);

}  // namespace baton::tools
