# SPDX-License-Identifier: Apache-2.0
"""Looking inside a trained model: what it attends to, what it holds, and what a part of it does."""
