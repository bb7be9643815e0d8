#include "common/base/version.h"

namespace baton {

std::string_view Version() { return BATON_VERSION; }

}  // namespace baton
