"""A first text for each model: one in which its heads have something to do."""

_OF_MODELS = {
    "attn-only-1l": "import os\nimport sys\nimport",
    "attn-only-2l": "class TokenBuffer:\n    pass\n\nbuffer = Token",
    "prose-4l": "The lamp is green and the coat is red. The colour of the lamp is",
    "zh-en": "我吃了一个苹果",
}
_OF_CODE = """class Point:
    def __init__(self, x, y):
        self.x = x
        self.y ="""


def example_of(name: str) -> str:
    """Return a text that suits a shipped model; for any other name some lines of code, which most tokenizers read."""
    return _OF_MODELS.get(name, _OF_CODE)
