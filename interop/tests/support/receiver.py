"""An OTLP/HTTP receiver: prints its port, then every span that it gets as a line of protobuf JSON.

It ends with its standard input, so it never outlives the test, however that ends.
"""

import asyncio
import os
import socket
import sys
import threading

from google.protobuf.json_format import MessageToJson
from oteltap import OtelTapHttpProtobufReceiver, OtelTapHttpProtobufReceiverSettings


def end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def main() -> None:
    threading.Thread(target=end_with_input, daemon=True).start()
    settings = OtelTapHttpProtobufReceiverSettings(http_port=free_port())
    async with OtelTapHttpProtobufReceiver(settings) as receiver:
        print(settings.http_port, flush=True)
        async for span in receiver.stream_traces():
            print(MessageToJson(span, indent=None), flush=True)


asyncio.run(main())
