// baton-decode: reads the config, loads the models, serves until SIGTERM, drains.
#include "common/node/main/node_main.h"
#include "decode_node/serve/decode_node.h"

int main(int argc, char** argv) {
  return baton::RunNode<baton::DecodeNode>(
      argc, argv, {.name = "baton-decode", .description = "Serves models to routers."},
      baton::DecodeSection());
}
