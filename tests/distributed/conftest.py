"""Imports that take seconds: once, before ranks are forked."""

import torch._dynamo  # noqa: F401

import gradwire.integrations.attach  # noqa: F401
