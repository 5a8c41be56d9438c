"""OpenVINO GenAI as the decoder, over an exported folder or a GGUF file, in a process of its own.

ArS is its plain pipeline. A draft is its prompt lookup (`draft=lookup`) or an exported draft model
(`draft=FOLDER`) with K assistant tokens. A block of tokens that its streamer receives is a round.
How many tokens were drafted for a round the pipeline does not tell, so that rates over drafted
tokens are n/a.
"""

from spsbench.methods.decoders.engine_process import EngineDecoder


class OpenVinoDecoder(EngineDecoder):
    """OpenVINO GenAI on the CPU; it chooses its window itself."""

    engine = "openvino"
