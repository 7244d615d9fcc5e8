# SPDX-License-Identifier: Apache-2.0

import pytest
import text_models


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory):
    return text_models.save_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory):
    return text_models.save_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="session")
def decoder_folder(tmp_path_factory):
    return text_models.save_decoder(tmp_path_factory.mktemp("decoder"))
