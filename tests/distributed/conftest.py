"""DDP imports torch._dynamo when it is first built, and attach imports the kernels: once, before the forks."""

import torch._dynamo  # noqa: F401

import gradwire.integrations.ddp  # noqa: F401
